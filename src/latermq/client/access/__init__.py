"""The users of the cluster in a process that is not a broker: copied from one, and kept up to date."""
