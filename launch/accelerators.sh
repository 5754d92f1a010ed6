# shellcheck shell=bash
# The TPU slices that the launchers know, one a line; sourced by cloud.sh. From the public tables of
# Cloud TPU and GKE. v4 and v5p are named by TensorCores (two a chip), v5e and v6e by chips. GKE's
# machine type says chips per host (-4t); hosts x chips per host = chips = product of the topology.
# untested on hardware

# name    cloud type     chips hosts topology machine type      node label           VM image
ACCELERATORS='
v4-8      v4-8           4     1     2x2x1    ct4p-hightpu-4t   tpu-v4-podslice      tpu-ubuntu2204-base
v4-16     v4-16          8     2     2x2x2    ct4p-hightpu-4t   tpu-v4-podslice      tpu-ubuntu2204-base
v4-32     v4-32          16    4     2x2x4    ct4p-hightpu-4t   tpu-v4-podslice      tpu-ubuntu2204-base
v4-64     v4-64          32    8     2x4x4    ct4p-hightpu-4t   tpu-v4-podslice      tpu-ubuntu2204-base
v4-128    v4-128         64    16    4x4x4    ct4p-hightpu-4t   tpu-v4-podslice      tpu-ubuntu2204-base
v4-256    v4-256         128   32    4x4x8    ct4p-hightpu-4t   tpu-v4-podslice      tpu-ubuntu2204-base
v5e-1     v5litepod-1    1     1     1x1      ct5lp-hightpu-1t  tpu-v5-lite-podslice v2-alpha-tpuv5-lite
v5e-4     v5litepod-4    4     1     2x2      ct5lp-hightpu-4t  tpu-v5-lite-podslice v2-alpha-tpuv5-lite
v5e-8     v5litepod-8    8     1     2x4      ct5lp-hightpu-8t  tpu-v5-lite-podslice v2-alpha-tpuv5-lite
v5e-16    v5litepod-16   16    4     4x4      ct5lp-hightpu-4t  tpu-v5-lite-podslice v2-alpha-tpuv5-lite
v5e-32    v5litepod-32   32    8     4x8      ct5lp-hightpu-4t  tpu-v5-lite-podslice v2-alpha-tpuv5-lite
v5e-64    v5litepod-64   64    16    8x8      ct5lp-hightpu-4t  tpu-v5-lite-podslice v2-alpha-tpuv5-lite
v5e-128   v5litepod-128  128   32    8x16     ct5lp-hightpu-4t  tpu-v5-lite-podslice v2-alpha-tpuv5-lite
v5e-256   v5litepod-256  256   64    16x16    ct5lp-hightpu-4t  tpu-v5-lite-podslice v2-alpha-tpuv5-lite
v5p-8     v5p-8          4     1     2x2x1    ct5p-hightpu-4t   tpu-v5p-slice        v2-alpha-tpuv5
v5p-16    v5p-16         8     2     2x2x2    ct5p-hightpu-4t   tpu-v5p-slice        v2-alpha-tpuv5
v5p-32    v5p-32         16    4     2x2x4    ct5p-hightpu-4t   tpu-v5p-slice        v2-alpha-tpuv5
v5p-64    v5p-64         32    8     2x4x4    ct5p-hightpu-4t   tpu-v5p-slice        v2-alpha-tpuv5
v5p-128   v5p-128        64    16    4x4x4    ct5p-hightpu-4t   tpu-v5p-slice        v2-alpha-tpuv5
v5p-256   v5p-256        128   32    4x4x8    ct5p-hightpu-4t   tpu-v5p-slice        v2-alpha-tpuv5
v6e-1     v6e-1          1     1     1x1      ct6e-standard-1t  tpu-v6e-slice        v2-alpha-tpuv6e
v6e-4     v6e-4          4     1     2x2      ct6e-standard-4t  tpu-v6e-slice        v2-alpha-tpuv6e
v6e-8     v6e-8          8     1     2x4      ct6e-standard-8t  tpu-v6e-slice        v2-alpha-tpuv6e
v6e-16    v6e-16         16    4     4x4      ct6e-standard-4t  tpu-v6e-slice        v2-alpha-tpuv6e
v6e-32    v6e-32         32    8     4x8      ct6e-standard-4t  tpu-v6e-slice        v2-alpha-tpuv6e
v6e-64    v6e-64         64    16    8x8      ct6e-standard-4t  tpu-v6e-slice        v2-alpha-tpuv6e
v6e-128   v6e-128        128   32    8x16     ct6e-standard-4t  tpu-v6e-slice        v2-alpha-tpuv6e
v6e-256   v6e-256        256   64    16x16    ct6e-standard-4t  tpu-v6e-slice        v2-alpha-tpuv6e
'

# Sets TYPE CHIPS HOSTS TOPOLOGY MACHINE NODE_LABEL VM_IMAGE of accelerator $1; fails when unknown.
find_accelerator() {
  local name
  # shellcheck disable=SC2034  # read by the scripts that source this file
  while read -r name TYPE CHIPS HOSTS TOPOLOGY MACHINE NODE_LABEL VM_IMAGE; do
    if [ "$name" = "$1" ] && [ -n "$name" ]; then return; fi
  done <<<"$ACCELERATORS"
  return 1
}

accelerator_names() { awk 'NF { printf "%s%s", sep, $1; sep = " " }' <<<"$ACCELERATORS"; }
