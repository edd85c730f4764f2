"""What all databases share: rows read again in chunks, audits, changes of keys, schema versions."""
