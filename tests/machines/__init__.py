"""What gdrtop reads of real machines, compared with what other programs say of them."""
