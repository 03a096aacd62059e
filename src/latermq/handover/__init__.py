"""What a broker and the pipeline agree on: cuts, windows, manifests and who owns each timer."""
