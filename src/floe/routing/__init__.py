"""Which adapters answer a request: static embedding, softmax over centroids, explicit mixes."""
