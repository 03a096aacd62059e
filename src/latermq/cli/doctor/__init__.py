"""`latermq doctor`: checks this machine and a stopped store."""
