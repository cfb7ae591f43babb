/*
 * The memory of registered groups.
 */
#pragma once

struct comm;

/* Complete the registrations that all ranks have requested: make their memory
 * and records. */
void groups_progress(struct comm *comm);
