LOCK TABLE {schema}.records, {schema}.counts, {schema}.totals IN SHARE ROW EXCLUSIVE MODE
