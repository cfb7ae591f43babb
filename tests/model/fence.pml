/*
 * Reclaiming memory that a device still reads. A release stores a fence: a
 * timeline of its session, and the value that the timeline has when the work is
 * done. Then it lowers the count. The broker frees the slot when the count is 0
 * and the fence is reached.
 *
 * There is one slot, held once by each of two threads of one session. Each
 * thread has a stream with its own timeline, gives it work that reads, and
 * releases. The entry has one fence for both threads, so the stream of the
 * later release waits for the fence of the earlier one. The broker removes the
 * name at some time. A device does not ring, so while only a fence keeps the
 * slot, the broker checks again after a deadline. The process may die. Its
 * streams then stop some time before its pidfd becomes readable.
 *
 * Safety: work that reads finds the memory. Liveness: in the end the slot is
 * free.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   LATE_FENCE      a release stores the fence after it has lowered the count
 *   FENCE_FIRST     the broker reads the fence before the count
 *   NO_FENCE        the broker ignores the fence
 *   NO_COVER        a stream does not wait for the earlier fence
 *   NO_DEADLINE     the broker does not check again after a deadline
 *   EOF_IS_DEATH    the end of the connection drops holds and fences
 */
mtype = { PUBLISHED, LIMBO, FREE };
mtype word = PUBLISHED;
mtype = { READ, WAIT, SIGNAL };

short delta = 1;	  /* the grant is 1, so there are two holds */
byte fence_of, fence;	  /* the entry; fence_of is a timeline, or 0 */
byte counter[3];	  /* the session's timelines, 1 and 2 */
bool is_locked;		  /* the lock of the fences, private to the process */
bool is_pending, bell;

chan queue1 = [4] of { mtype, byte, byte };
chan queue2 = [4] of { mtype, byte, byte };

bool is_dying, is_dead, is_over;
byte n_released, n_ended;

#define GRANTED 1
#define N_HOLDS (GRANTED + delta)

/* --- the client ------------------------------------------------------------ */

inline store_fence(timeline, value)
{
	fence_of = timeline;
	fence = value
}

/* The new fence is reached only after the old one, so it can replace it. */
inline cover(queue, timeline)
{
#ifndef NO_COVER
	if
	:: fence_of != 0 && fence_of != timeline ->
		queue!WAIT, fence_of, fence
	:: else
	fi;
#endif
	value++;
	queue!SIGNAL, timeline, value
}

inline lower()
{
	delta--;
	if
	:: word == LIMBO -> is_pending = true; bell = true
	:: else
	fi
}

proctype Thread(byte timeline; chan queue)
{
	byte value;
	{
		queue!READ, 0, 0;
		d_step { !is_locked -> is_locked = true }
		cover(queue, timeline);
#ifdef LATE_FENCE
		lower();
		store_fence(timeline, value);
		is_locked = false
#else
		store_fence(timeline, value);
		is_locked = false;
		lower()
#endif
	} unless { is_dying };
	atomic { value = 0; n_released++ }
}

/* --- the device ------------------------------------------------------------ */

proctype Stream(chan queue)
{
	mtype what;
	byte timeline, value;
	{
		do
		:: queue?what, timeline, value ->
			if
			:: what == READ -> assert(word != FREE)
			:: what == WAIT -> counter[timeline] >= value
			:: what == SIGNAL -> counter[timeline] = value
			fi
		:: n_released == 2 && empty(queue) && !is_dying -> break
		od
	} unless { is_over };
	atomic {
		do
		:: is_over && nempty(queue) -> queue?what, timeline, value
		:: else -> break
		od;
		what = 0;
		timeline = 0;
		value = 0;
		n_ended++
	}
}

/* The work of a killed process ends some time later. After that its pidfd
 * becomes readable. Threads and streams that will stop are like those that take
 * no steps, so they stop at once. What nobody will read is cleared, so that
 * spin recognizes equal states. */
proctype Reaper()
{
	if
	:: atomic { is_dying = true; n_released == 2 };
		atomic { is_over = true; n_ended == 2; is_dead = true }
	:: true
	fi
}

/* --- the broker ------------------------------------------------------------ */

inline is_fenced()
{
#ifdef NO_FENCE
	fenced = false
#else
#ifndef FENCE_FIRST
	whose = fence_of;
	at = fence;
#endif
	fenced = whose != 0 && counter[whose] < at
#endif
}

/* slot_update_state() of broker/tensor/slot_state.c */
inline update_state()
{
	word = LIMBO;
#ifdef FENCE_FIRST
	whose = fence_of;
	at = fence;
#endif
	if
	:: is_gone -> word = FREE
	:: !is_gone && N_HOLDS > 0 -> skip
	:: else ->
		is_fenced();
		if
		:: fenced ->
#ifndef NO_DEADLINE
			is_watched = true
#else
			skip
#endif
		:: else -> word = FREE
		fi
	fi;
	d_step { whose = 0; at = 0; fenced = false }
}

inline bury()
{
	is_gone = true;
	if
	:: !is_named && word != FREE -> update_state()
	:: else
	fi
}

active proctype Broker()
{
	bool is_named = true, is_gone, is_watched, fenced;
	byte whose, at;

	do
	:: is_named -> is_named = false; update_state()
	:: bell ->
		bell = false;
		if
		:: is_pending ->
			is_pending = false;
			if
			:: word == LIMBO -> update_state()
			:: else
			fi
		:: else
		fi
	:: is_watched ->
		is_watched = false;
		if
		:: word == LIMBO -> update_state()
		:: else
		fi
#ifdef EOF_IS_DEATH
	:: is_dying && !is_gone -> bury()
#else
	:: is_dead && !is_gone -> bury()
#endif
	:: n_ended == 2 && n_released == 2 && !bell && !is_named &&
	   !is_watched && is_gone == is_dying -> break
	od;
	assert(word == FREE)
}

init
{
	atomic {
		run Thread(1, queue1);
		run Thread(2, queue2);
		run Stream(queue1);
		run Stream(queue2);
		run Reaper()
	}
}
