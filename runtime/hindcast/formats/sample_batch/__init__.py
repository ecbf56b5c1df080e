"""The format "SampleBatch": JSON lines that RLlib's old API writes."""
