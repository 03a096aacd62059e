"""`latermq bench`: how fast a broker takes and gives messages."""
