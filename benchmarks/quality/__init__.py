"""Quality of the wire codecs: what a model says after KV that was coded, beside what it says after exact KV."""
