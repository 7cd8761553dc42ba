#!/bin/sh
# mkdom NAME [burn|idle|duty=NN]: starts a guest of one page of code; VCPUS= and MEMORY= (MiB) override 1 and 8.
set -e
cat >"/tmp/$1.cfg" <<CFG
name = "$1"
type = "pv"
kernel = "/domu/guest"
extra = "${2:-burn}"
memory = ${MEMORY:-8}
vcpus = ${VCPUS:-1}
on_crash = "destroy"
CFG
exec xl create -q "/tmp/$1.cfg"
