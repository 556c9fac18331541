"""Put/signal programs as files: JSON of our own, which engines over stock NCCL and RCCL read (docs/put-signal.md)."""
