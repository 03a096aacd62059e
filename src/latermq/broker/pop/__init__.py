"""POP consumption: pops, acknowledgements, expiry and waiting pops over one store."""
