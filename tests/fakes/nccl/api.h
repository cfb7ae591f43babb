/*
 * What the double exports: NCCL's functions that cuda/nccl_symbols.h lists,
 * fsdp_is_fake, and a count for tests.
 *
 * It is libnccl.so.2 for machines without a GPU: ranks in any processes of one
 * machine, device memory of the driver's double (tests/fakes/cuda), real
 * asynchrony on its streams. It refuses what the real one would hang on, and
 * much of what the real one would only do wrong:
 *
 *   - ranks that call different things, or that are not all there;
 *   - two ranks on one GPU, unless their NCCL_HOSTID differs;
 *   - memory that is none of the device, streams of another context, inputs
 *     that overlap outputs in any but the documented way;
 *   - a communicator that is used while it is busy, by two threads at a time,
 *     or after its end; its end while buffers are registered, and buffers
 *     that are unmapped before they are deregistered.
 *
 * Of what NCCL offers it knows what cuda/ uses: communicators that do not
 * block, all-gather, reduce-scatter and all-reduce; sum, average, PreMulSum.
 *
 * The work of one communicator is done in the order of the calls, also where it
 * is on several streams.
 *
 * An end waits as the real one's does: ncclCommAbort() and ncclCommDestroy()
 * for what was on the streams of the communicator's work before that, and
 * ncclCommDestroy() for all other ranks to end theirs. Neither has a limit.
 *
 * The environment can make it worse:
 *
 *   FAKENCCL_VERSION=21805       what ncclGetVersion() says
 *   FAKENCCL_FAIL=AllGather:2:3  the second ncclAllGather() of each process
 *                                gives result 3 and does nothing; several with
 *                                commas; "kill" instead of a result: SIGKILL;
 *                                "hang": the call does not come back.
 *                                "Meet" is a rank that rank 0 has heard of,
 *                                "Run" a collective whose turn on its stream
 *                                it is
 *   FAKENCCL_DELAY_US=500        wait up to that long, at random, before ranks
 *                                meet and before a collective runs
 *   FAKENCCL_DEAF=1              nobody notices that a rank has ended or died:
 *                                what waits for it waits on, as over memory
 *                                that is shared
 */
#pragma once
#pragma GCC visibility push(default)
#include "cuda/nccl_api.h"
#include <stdbool.h>
extern const int fsdp_is_fake;
/* What this process has registered since its start, and has registered now. */
void fake_nccl_registrations(unsigned int *ret_made, unsigned int *ret_left);
#pragma GCC visibility pop

/* Keep the sentence for ncclGetLastError(), and give `result` back. */
ncclResult_t api_fail(ncclResult_t result, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* What the environment wants of this call of that function (no "nccl" in
 * front): ncclSuccess: nothing. */
ncclResult_t api_fault(const char *function);
/* Wait for as long as the environment says. */
void api_delay(void);
/* FAKENCCL_DEAF */
bool api_is_deaf(void);
