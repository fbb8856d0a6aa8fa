"""KV to bytes and back. `format` documents every byte, `chunk` packs and verifies, `pool_codec` is what workers call."""
