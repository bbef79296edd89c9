ANALYZE {schema}.records, {schema}.counts, {schema}.totals
