SELECT {schema}.announce_listener()
