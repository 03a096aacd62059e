"""`latermq bench`: measures a broker."""
