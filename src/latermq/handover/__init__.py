"""The contract between a broker and the pipeline: cuts, windows, manifests and the ownership of timers."""
