package top

import (
	"strings"
)

// Palette says how styles are drawn.
type Palette [selected + 1]string

// Palettes. Without colours, what is bad is bold, and always in words, too.
var (
	colours = Palette{bold: "1", dim: "2", good: "32", warn: "33", bad: "1;31", heading: "1;4", selected: "7"}
	mono    = Palette{bold: "1", warn: "1", bad: "1", heading: "1;4", selected: "7"}
)

// PaletteOf returns the palette of a terminal, by its environment.
func PaletteOf(getenv func(string) string) Palette {
	term := getenv("TERM")
	for _, kind := range []string{"vt1", "vt2", "vt3"} {
		if strings.HasPrefix(term, kind) {
			return mono
		}
	}
	if getenv("NO_COLOR") != "" || strings.HasSuffix(term, "-m") || strings.HasSuffix(term, "-mono") {
		return mono
	}
	return colours
}

// Draw returns what draws a frame over another one on a terminal.
func (p *Palette) Draw(lines []Line) []byte {
	b := []byte("\x1b[H")
	for i, l := range lines {
		if i > 0 {
			b = append(b, "\r\n"...)
		}
		for _, piece := range l {
			if sgr := p[piece.style]; sgr != "" && piece.text != "" {
				b = append(b, "\x1b["+sgr+"m"+piece.text+"\x1b[0m"...)
			} else {
				b = append(b, piece.text...)
			}
		}
		b = append(b, "\x1b[K"...)
	}
	return append(b, "\x1b[J"...)
}
