"""The remoting protocol on sockets: listener, connections, fair turns and the send lane."""
