"""`latermq doctor`: checks of this machine and of a stopped store."""
