"""RocketMQ's remoting protocol, version 4.x: frames, codes, headers and JSON bodies."""
