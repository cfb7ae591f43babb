/*
 * What the broker gives up for good once it listens: system calls and files
 * that neither it nor fsdp-worker needs. A CUDA driver needs more than anybody
 * has listed, so on a node with one only a list of calls is refused.
 */
#pragma once

struct broker;

/* Before the first thread starts: the threads and fsdp-worker inherit it. The
 * broker works without it just as well, so failures are logged only. */
void broker_confine(const struct broker *broker);
