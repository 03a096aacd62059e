"""Users, permissions and signatures, as in RocketMQ's ACL 2.0. Sockets, clock and randomness are arguments."""
