/*
 * The memory of registered groups.
 */
#pragma once

struct comm;

/* Complete registrations that all ranks have requested: memory,
 * record, ready. */
void groups_progress(struct comm *comm);
