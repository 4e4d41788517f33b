/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Entries of flows whose client is not validated. */
#pragma once
#include "packet.h"

static __always_inline struct half_open *find_half_open(const struct flow *flow)
{
	struct half_open *half_open = bpf_map_lookup_elem(&half_open_flows, flow);

	return half_open ? half_open : bpf_map_lookup_elem(&half_open_reserve, flow);
}
