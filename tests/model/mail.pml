/*
 * Messages between two ranks (shm/mail.h). Each message has one or two pieces,
 * which pass through slots of the ranks' boxes. One rank may die before any of
 * its steps.
 *
 * Each rank sends N_MESSAGES and receives as many. It sends or receives a piece
 * whenever it can (client/rank/transfers.c), so both ranks may send first. A
 * slot has the number of a piece, or TORN while it is written. The head of a
 * message is in its first piece. A receiver must ring when a slot is free
 * again, and a sender when it has sent a piece. A rank that can do neither
 * checks both conditions, counts itself as a sleeper, checks again and sleeps
 * (bell.h).
 *
 * These properties are checked:
 *   - A piece that is read is complete, and is the next one.
 *   - The size of a message is the one that its sender gave it.
 *   - No rank sleeps for ever.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   COUNT_FIRST   a sender counts a piece before it has written it
 *   TAKE_FIRST    a receiver counts a piece before it has read it
 *   NO_ROOM       a sender writes a piece although no slot is free
 *   LATE_ROOM     a sender writes one piece more than there are slots
 *   SILENT_SENT   a sender does not ring
 *   SILENT_ROOM   a receiver does not ring
 *   SLEEP_LATE    a rank checks its conditions before it counts as a sleeper
 *   SEND_ALL      a rank receives nothing before it has sent everything
 *   DEAF          a rank does not check the verdict
 */
#define N 2
#define SLOTS 2
#ifndef N_MESSAGES
#define N_MESSAGES 2
#endif
#define TORN 255
/* The number of pieces of a message. Messages have one and two pieces
 * alternately, and the two ranks begin differently. */
#define PIECES(r, m) (((r) + (m)) % 2 + 1)

byte sent[N], received[N];      /* shared counts of pieces */
byte number[N * SLOTS], head[N * SLOTS];
/* A rank only asks whether its bell has rung since the rank read the counter.
 * So this is whether it has not, and states do not differ by how often it rang.
 */
bool is_quiet[N];
byte sleepers[N];
bool asleep[N];                 /* in the kernel's queue */
bool verdict;
byte n_dead, n_ended;

#define OTHER (1 - me)
#define SLOT(r, p) ((r) * SLOTS + (p) % SLOTS)

#ifdef DEAF
#define OVER false
#else
#define OVER verdict
#endif

/* Whether the rank sees a free slot, and whether it sees a piece to receive. */
#ifdef LATE_ROOM
#define HAS_ROOM (n_sent - received[OTHER] < SLOTS + 1)
#else
#ifdef NO_ROOM
#define HAS_ROOM true
#else
#define HAS_ROOM (n_sent - received[OTHER] < SLOTS)
#endif
#endif
#define HAS_COME (sent[OTHER] != n_received)

#define CAN_SEND (s_message < N_MESSAGES && HAS_ROOM)
#ifdef SEND_ALL
#define CAN_RECEIVE (s_message == N_MESSAGES && r_message < N_MESSAGES && HAS_COME)
#else
#define CAN_RECEIVE (r_message < N_MESSAGES && HAS_COME)
#endif
#define IS_DONE (s_message == N_MESSAGES && r_message == N_MESSAGES)

/* This is part of the atomic block of the step before or after: nobody can tell
 * a dead rank from a slow one until the broker has seen the death, and that may
 * be later. */
inline may_die()
{
	if
	:: n_dead == 0 -> n_dead++; goto ended
	:: true
	fi
}

/* bell_ring() for the bell of the other rank. */
inline ring()
{
	if
	:: sleepers[OTHER] > 0 ->
		is_quiet[OTHER] = false;
		atomic { may_die(); asleep[OTHER] = false }
	:: else
	fi
}

inline write()
{
	atomic { number[SLOT(me, n_sent + 1)] = TORN; may_die() };
	if
	:: s_piece == 0 ->
		head[SLOT(me, n_sent + 1)] = PIECES(me, s_message)
	:: else
	fi;
	number[SLOT(me, n_sent + 1)] = n_sent + 1
}

inline send()
{
#ifdef COUNT_FIRST
	sent[me] = n_sent + 1;
	write();
#else
	write();
	atomic { may_die(); sent[me] = n_sent + 1; may_die() };
#endif
	d_step {
		n_sent++;
		s_piece++;
		if
		:: s_piece == PIECES(me, s_message) -> s_piece = 0; s_message++
		:: else
		fi
	};
#ifndef SILENT_SENT
	ring()
#else
	skip
#endif
}

inline read()
{
	assert(number[SLOT(OTHER, n_received + 1)] == n_received + 1);
	if
	:: r_piece == 0 ->
		r_size = head[SLOT(OTHER, n_received + 1)];
		assert(r_size == PIECES(OTHER, r_message))
	:: else
	fi;
	atomic {
		may_die();
		assert(number[SLOT(OTHER, n_received + 1)] == n_received + 1)
	}
}

inline receive()
{
#ifdef TAKE_FIRST
	received[me] = n_received + 1;
	read();
#else
	read();
	atomic { received[me] = n_received + 1; may_die() };
#endif
	d_step {
		n_received++;
		r_piece++;
		if
		:: r_piece == r_size -> r_piece = 0; r_message++
		:: else
		fi
	};
#ifndef SILENT_ROOM
	ring()
#else
	skip
#endif
}

/* Waits until a piece can be sent or received. A rank that has sent everything
 * and only receives waits in the same way. */
inline rest()
{
	is_quiet[me] = true;
#ifdef SLEEP_LATE
	if
	:: CAN_SEND || CAN_RECEIVE || OVER -> goto awake
	:: else
	fi;
	sleepers[me]++;
#else
	atomic { sleepers[me]++; may_die() };
	if
	:: CAN_SEND || CAN_RECEIVE || OVER -> goto up
	:: else
	fi;
#endif
	/* The kernel compares the word with the one that was read. */
	atomic {
		if
		:: is_quiet[me] -> asleep[me] = true
		:: else
		fi
	};
	!asleep[me];
up:
	atomic { is_quiet[me] = false; sleepers[me]-- }
awake:
	is_quiet[me] = false
}

proctype rank(byte me)
{
	byte n_sent, n_received;   /* private counts of pieces */
	byte s_message, s_piece;   /* of the message that is being sent */
	byte r_message, r_piece, r_size;

	do
	:: OVER -> break
	:: IS_DONE -> break
	:: CAN_SEND -> send()
	:: CAN_RECEIVE -> receive()
	:: !CAN_SEND && !CAN_RECEIVE && !IS_DONE && !OVER -> rest()
	od;
ended:
	atomic { is_quiet[me] = false; n_ended++ }
}

/* After a death the broker writes the verdict, and rings even if there are no
 * sleepers. */
proctype broker()
{
	byte i;

	if
	:: n_dead > 0 ->
		verdict = true;
		do
		:: i < N -> is_quiet[i] = false; asleep[i] = false; i++
		:: else -> break
		od
	:: n_ended == N && n_dead == 0
	fi
}

init {
	atomic {
		run broker();
		run rank(0);
		run rank(1)
	}
}
