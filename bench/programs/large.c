/* Nearly as many instructions as a verifier looks at: every turn of the loop is a state of its own, with variables on the stack. */

#define TURNS 5900
#define MIX(word) (word ^= word << 13, word ^= word >> 7, word ^= word << 17)

__attribute__((section("raw_tp"), used)) long large(const unsigned long *context)
{
	unsigned long word = context[0], sums[16] = { 0 };
	for (unsigned turn = 0; turn < TURNS; turn++) {
		sums[word & 15] += turn;
		MIX(word), MIX(word), MIX(word), MIX(word), MIX(word), MIX(word), MIX(word), MIX(word);
		sums[word & 7] ^= word;
		MIX(word), MIX(word), MIX(word), MIX(word), MIX(word), MIX(word), MIX(word), MIX(word);
	}
	return sums[0] ^ sums[3] ^ sums[5] ^ sums[15];
}
