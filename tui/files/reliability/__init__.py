"""The history of NICs and GPUs that `gdrtop watch` keeps."""
