"""May this text leave the device, and why."""
