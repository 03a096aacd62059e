"""The audit log: who did what, from where, on which resource, and which entry of a policy allowed or refused it."""
