/* The table of all verbs. */
#include "client/ctl/verb.h"

const struct verb *const verb_families[] = {
	verbs_load,     verbs_save,    verbs_restore,  verbs_list,
	verbs_get,      verbs_put,     verbs_rm,       verbs_verify,
	verbs_wait,     verbs_hold,    verbs_tickets,  verbs_du,
	verbs_status,   verbs_top,     verbs_plan,     verbs_comms,
	verbs_channels, verbs_devices, verbs_prefixes, verbs_admin,
	verbs_metrics,  verbs_config,  verbs_complete, NULL};
