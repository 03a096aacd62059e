"""The Spark session: requirements, jars, settings and readable failures."""
