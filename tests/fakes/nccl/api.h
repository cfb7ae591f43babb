/*
 * The fake exports NCCL's functions that cuda/nccl_symbols.h lists,
 * fsdp_is_fake, and a count for tests.
 *
 * It is libnccl.so.2 for machines without a GPU: ranks in any processes of one
 * machine, device memory of the fake driver (tests/fakes/cuda), real
 * asynchrony on its streams. It refuses calls on which the real library would
 * hang, and many on which that would give wrong results:
 *
 *   - ranks that make different calls, or that are not all there;
 *   - two ranks on one GPU, unless their NCCL_HOSTID differs;
 *   - memory that is not of the device, streams of another context, inputs
 *     that overlap outputs in any but the documented way;
 *   - a communicator that is used while it is busy, by two threads at a time,
 *     or after its end; its end while buffers are registered, and buffers
 *     that are unmapped before they are deregistered.
 *
 * It supports the part of NCCL that cuda/ uses: communicators that do not
 * block, all-gather, reduce-scatter and all-reduce; sum, average, PreMulSum.
 *
 * The first collective of a kind connects the ranks: it is in progress until
 * all of them have begun it, unless NCCL_RUNTIME_CONNECT is 0.
 *
 * The work of one communicator is done in the order of the calls, even if it
 * is on several streams.
 *
 * The end of a communicator waits as in the real library: ncclCommAbort() and
 * ncclCommDestroy() wait for earlier work on the streams of the communicator,
 * and ncclCommDestroy() until all other ranks end theirs. Neither has a limit.
 * While they wait for a stream, so do calls of the driver that change memory.
 *
 * The environment can add faults:
 *
 *   FAKENCCL_VERSION=21805       the result of ncclGetVersion()
 *   FAKENCCL_FAIL=AllGather:2:3  the second ncclAllGather() of each process
 *                                returns 3 and does nothing; several faults are
 *                                separated by commas; "kill" instead of a
 *                                result sends SIGKILL; "hang" never returns.
 *                                "Meet" is called for each rank from which
 *                                rank 0 has heard, "Run" for each collective
 *                                when it runs on its stream
 *   FAKENCCL_DELAY_US=500        wait up to that long, at random, before ranks
 *                                meet and before a collective runs
 *   FAKENCCL_DEAF=1              no rank notices that another has ended or
 *                                died, and waits continue, as over shared
 *                                memory
 */
#pragma once
#pragma GCC visibility push(default)
#include "cuda/nccl_api.h"
#include <stdbool.h>
extern const int fsdp_is_fake;
/* Returns how many buffers this process has registered since its start, and how
 * many are registered now. */
void fake_nccl_registrations(unsigned int *ret_made, unsigned int *ret_left);
#pragma GCC visibility pop

/* Keeps the sentence for ncclGetLastError(), and returns `result`. */
ncclResult_t api_fail(ncclResult_t result, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Returns the result that the environment demands for this call of the function
 * (whose name is without "nccl"), or ncclSuccess. */
ncclResult_t api_fault(const char *function);
/* Waits for a random time as the environment says. */
void api_delay(void);
/* Returns whether FAKENCCL_DEAF is set. */
bool api_is_deaf(void);
