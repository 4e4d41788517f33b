// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The congestion control as the programs have it, compiled for this host. */
#include "../../src/control.h"

void host_control_begin(struct control *control, __u16 mss, const struct control_known *known)
{
	control_begin(control, mss, known);
}

void host_control_on_ack(struct control *control, const struct control_ack *ack)
{
	struct control_ack own = *ack;

	control_on_ack(control, &own);
}

void host_control_on_timeout(struct control *control, __u32 now_ms)
{
	control_on_timeout(control, now_ms);
}

__u32 host_control_pacing_rate(const struct control *control)
{
	return control_pacing_rate(control);
}

bool host_control_known(const struct control *control, struct control_known *known)
{
	return control_known(control, known);
}
