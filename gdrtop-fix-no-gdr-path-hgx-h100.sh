#!/bin/sh
# Load nvidia_peermem
# made by gdrtop for hgx-h100; read it before you run it, as root
# jobs that run already keep their way until they are started anew
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin

# 1. loads nvidia_peermem: lets NICs register GPU memory the old way; not needed where DMA-BUF works
modprobe nvidia_peermem
#    back: rmmod nvidia_peermem
