package config

import (
	"bytes"
	"slices"
	"strings"
)

// Closest returns the candidate closest to text if text may be a misspelling of it, else "".
func Closest(text string, candidates []string) string {
	best, bestDistance := "", 1+max(1, len(text)/3)
	lower := strings.ToLower(text)
	for _, c := range candidates {
		d := editDistance(lower, strings.ToLower(c))
		if d > 1 && len(text) > shortWord && sameLetters(lower, strings.ToLower(c)) {
			d = 1 // letters typed in the wrong order are one slip, as in "adnim"
		}
		if d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// shortWord is the longest word whose letters make too many other words: "db" and "bd" are two names.
const shortWord = 3

// sameLetters reports whether two words consist of the same bytes, in any order.
func sameLetters(a, b string) bool {
	one, other := []byte(a), []byte(b)
	slices.Sort(one)
	slices.Sort(other)
	return bytes.Equal(one, other)
}

// didYouMean returns `; did you mean "x"?`, or "" when nothing is close.
func didYouMean(text string, candidates []string) string {
	if s := Closest(text, candidates); s != "" {
		return `; did you mean "` + s + `"?`
	}
	return ""
}

// otherNumber returns the candidate that is the plural of a word, or whose plural the word is, or that is the word with a unit; "" = none.
func otherNumber(word string, candidates []string) string {
	plural := func(s string) string {
		if stem, ok := strings.CutSuffix(s, "y"); ok && stem != "" && !strings.ContainsAny(stem[len(stem)-1:], "aeiou") {
			return stem + "ies"
		}
		return s + "s"
	}
	for _, c := range candidates {
		if plural(c) == word || plural(word) == c || c == word+"_kib" || c == word+"_mib" {
			return c
		}
	}
	return ""
}

// maxCompared bounds the quadratic comparison; no key, value or name is this long.
const maxCompared = 64

// editDistance is the Damerau-Levenshtein distance in its optimal string alignment form:
// insertions, deletions, replacements and swaps of neighbours each cost 1.
func editDistance(a, b string) int {
	if len(a) > maxCompared || len(b) > maxCompared {
		return maxCompared
	}
	var two, one, row [maxCompared + 1]int
	for j := range len(b) + 1 {
		one[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, one[j]+1, one[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], two[j-2]+1)
			}
		}
		two, one = one, row
	}
	return one[len(b)]
}
