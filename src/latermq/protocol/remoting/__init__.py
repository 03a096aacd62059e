"""RocketMQ's remoting protocol 4.x: frames, codes, headers and JSON bodies."""
