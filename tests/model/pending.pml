/*
 * The pending bitmap of shm/refs.h and its summary. The broker must not miss a
 * slot whose last hold was dropped, although clients set bits while the broker
 * takes them, and the broker takes only a few at once.
 *
 * There are three slots, all in limbo. 0 and 1 share a word of the bitmap, 2 is
 * in another one. Two threads of the client release them; both hold slot 0. The
 * broker takes one slot at a time, puts the other bits back and repeats this.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   SUMMARY_FIRST   the client sets the bit of the summary before the other bit
 *   RING_FIRST      the client rings before it sets bits
 *   CLEAR_LATE      the broker reads a word and then clears it
 *   LEAVES_BACK     the broker puts bits back without setting the summary
 *   NOT_AGAIN       the broker does not repeat after it took the maximum
 */
#define N_SLOTS 3
#define WORD_OF(slot) ((slot) / 2)
#define BIT_OF(slot) (1 << ((slot) % 2))

byte word[2];	/* the bitmap, two bits in each word */
byte summary;	/* one word with two bits */
bool bell;
byte holds[N_SLOTS];
bool is_freed[N_SLOTS];
byte n_done;

/* --- clients --------------------------------------------------------------- */

inline set_pending(w, bits)
{
#ifdef SUMMARY_FIRST
	summary = summary | 1 << w;
	word[w] = word[w] | bits
#else
	word[w] = word[w] | bits;
	summary = summary | 1 << w
#endif
}

inline release(slot)
{
	assert(!is_freed[slot]);
	holds[slot]--;
#ifdef RING_FIRST
	bell = true;
	set_pending(WORD_OF(slot), BIT_OF(slot))
#else
	set_pending(WORD_OF(slot), BIT_OF(slot));
	bell = true
#endif
}

proctype Client(byte first; byte second)
{
	release(first);
	release(second);
	n_done++
}

/* --- the broker ------------------------------------------------------------ */

inline take_bits(w)
{
#ifdef CLEAR_LATE
	bits = word[w];
	word[w] = 0
#else
	d_step { bits = word[w]; word[w] = 0 }
#endif
}

inline put_back(w)
{
#ifdef LEAVES_BACK
	word[w] = word[w] | bits
#else
	word[w] = word[w] | bits;
	summary = summary | 1 << w
#endif
}

/* refs_take_pending() for at most one slot, which is in `found`; N_SLOTS: none. */
inline take()
{
	d_step { rows = summary; summary = 0; found = N_SLOTS; w = 0 }
	do
	:: w < 2 && found == N_SLOTS && (rows & 1 << w) ->
		take_bits(w);
		if
		:: bits & 1 -> found = w * 2; bits = bits & 2
		:: else ->
			if
			:: bits & 2 -> found = w * 2 + 1; bits = 0
			:: else
			fi
		fi;
		if
		:: bits -> put_back(w); bits = 0
		:: else
		fi;
		rows = rows & ~(1 << w);
		w++
	:: w < 2 && found == N_SLOTS && !(rows & 1 << w) -> w++
	:: w == 2 || found < N_SLOTS -> break
	od;
	/* The words of these rows were not read. */
	if
	:: rows -> summary = summary | rows; rows = 0
	:: else
	fi;
	w = 0
}

inline update_state()
{
	if
	:: holds[found] == 0 -> is_freed[found] = true
	:: else
	fi
}

proctype Broker()
{
	byte rows, bits, found, w;

	do
	:: bell ->
		bell = false;
		do
		:: take();
			if
			:: found < N_SLOTS -> update_state()
			:: else -> break
			fi
#ifdef NOT_AGAIN
			; break
#endif
		od
	:: n_done == 2 && !bell -> break
	od;
	assert(is_freed[0] && is_freed[1] && is_freed[2])
}

init
{
	atomic {
		holds[0] = 2;
		holds[1] = 1;
		holds[2] = 1;
		run Client(0, 2);
		run Client(1, 0);
		run Broker()
	}
}
