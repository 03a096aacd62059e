"""POP consumption: messages that a consumer holds for an invisible time and acknowledges one by one."""
