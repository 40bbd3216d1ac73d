package protocols

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
)

// ErrorPage is the content of answers with some statuses; see httpproxy.ErrorPage. It has a File or a Body.
type ErrorPage struct {
	Status      []PageStatus `conf:"status" required:"true" single:"true" maxlen:"200"`
	File        config.Path  `conf:"file"`
	Body        string       `conf:"body"`
	ContentType string       `conf:"content_type"` // "": by the name of File; text/plain for Body
	Of          PageOf       `conf:"of" default:"gateway"`
}

// PageStatus is a status such as 503, or a class: 4xx or 5xx.
type PageStatus string

// Check implements config.Checked.
func (PageStatus) Check(text string) error {
	if text == "4xx" || text == "5xx" {
		return nil
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 400 && n <= 599 && len(text) == 3 {
		return nil
	}
	return fmt.Errorf("want a status from 400 to 599, 4xx or 5xx")
}

// PageOf says whose answers have a page.
type PageOf string

// The values of PageOf.
const (
	PageOfGateway PageOf = "gateway"
	PageOfBackend PageOf = "backend"
	PageOfBoth    PageOf = "both"
)

// Values implements config.Enum.
func (PageOf) Values() []string { return []string{"gateway", "backend", "both"} }

// pageTypes are the media types of files without content_type, by the ends of their names.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".htm": "text/html; charset=utf-8", ".txt": "text/plain; charset=utf-8", ".json": "application/json",
	".xml": "application/xml",
}

// contentType returns the media type of the page; "" = it must be given.
func (p *ErrorPage) contentType() string {
	switch {
	case p.ContentType != "":
		return p.ContentType
	case p.File != "":
		return pageTypes[strings.ToLower(filepath.Ext(string(p.File)))]
	}
	return "text/plain; charset=utf-8"
}

// content returns the page, which may be a file.
func (p *ErrorPage) content() (string, error) {
	if p.File == "" {
		return p.Body, nil
	}
	text, err := p.File.Read()
	if err == nil && len(text) > httpproxy.MaxOwnBody {
		err = fmt.Errorf("the file has %d bytes; a page has at most %d", len(text), httpproxy.MaxOwnBody)
	}
	return string(text), err
}

// pagesOf returns the proxy's form. A list without pages is not nil.
func pagesOf(all []ErrorPage) ([]httpproxy.ErrorPage, error) {
	if all == nil {
		return nil, nil
	}
	pages := []httpproxy.ErrorPage{}
	for i := range all {
		p := &all[i]
		content, err := p.content()
		if err != nil {
			return nil, fmt.Errorf("error_pages: %w", err)
		}
		page := httpproxy.ErrorPage{
			Content: content, ContentType: p.contentType(),
			Of: map[PageOf]httpproxy.PageOf{PageOfBackend: httpproxy.PageOfBackend, PageOfBoth: httpproxy.PageOfBoth}[p.Of],
		}
		for _, s := range p.Status {
			n, _ := strconv.Atoi(strings.TrimSuffix(string(s), "xx")) // no error: it was checked
			page.Statuses = append(page.Statuses, n)
		}
		pages = append(pages, page)
	}
	return pages, nil
}

// checkErrorPages reports problems of a list of pages.
func checkErrorPages(c *config.Checker, all []ErrorPage) {
	type answer struct {
		status PageStatus
		of     PageOf
	}
	seen := map[answer]int{}
	for i := range all {
		p := &all[i]
		checkErrorPage(c, p)
		if !c.NoProblemAt(&p.Of) {
			continue
		}
		for j := range p.Status {
			s := &p.Status[j]
			for _, of := range []PageOf{PageOfGateway, PageOfBackend} {
				if p.Of != of && p.Of != PageOfBoth {
					continue
				}
				if line := seen[answer{*s, of}]; line != 0 {
					c.Report(c.Mark(s), "status: %s has a page for answers of the %s already, at line %d", config.Clip(string(*s)), of, line)
					break
				}
				seen[answer{*s, of}] = c.Mark(s).Line
			}
		}
	}
}

func checkErrorPage(c *config.Checker, p *ErrorPage) {
	if len(p.Status) == 0 && c.Written(&p.Status) && c.NoProblemAt(&p.Status) {
		c.Report(c.Mark(&p.Status), "status: is empty; want statuses such as [502, 503] or 5xx")
	}
	switch file, body := c.Written(&p.File), c.Written(&p.Body); {
	case file && body:
		c.Report(c.Mark(&p.Body), "body: the page has a \"file\" already")
	case !file && !body:
		c.Report(c.Mark(p), "error_pages: want \"file\" or \"body\"")
	}
	if !c.NoProblemAt(&p.File, &p.Body) {
		return
	}
	switch kind := p.contentType(); {
	case kind == "":
		c.Report(c.Mark(&p.File), "content_type is missing: the name of the file does not end in .html, .json, .txt or .xml")
	case httpproxy.CheckContentType(kind) != nil:
		c.Report(c.Mark(&p.ContentType), "content_type: %q: %v", config.Clip(kind), httpproxy.CheckContentType(kind))
	}
	content, err := p.content()
	if err == nil && len(content) > httpproxy.MaxOwnBody {
		err = fmt.Errorf("longer than %d bytes", httpproxy.MaxOwnBody)
	}
	if err == nil {
		err = httpproxy.CheckPage(content)
	}
	if err != nil {
		c.Report(c.Mark(&p.File, &p.Body), "error_pages: %v", err)
		return
	}
	warnOfNames(c, p, content)
}

// braced are the words in braces of a page. Variables are among them, and parts of scripts and styles may be.
var braced = regexp.MustCompile(`\{([a-z_]{4,20})\}`)

// warnOfNames warns of a word in braces that is nearly the name of a variable.
func warnOfNames(c *config.Checker, p *ErrorPage, content string) {
	known := httpproxy.PageVariables()
	for _, word := range braced.FindAllStringSubmatch(content, 50) {
		if closest := config.Closest(word[1], known); closest != "" && !slices.Contains(known, word[1]) {
			c.Warn(c.Mark(&p.File, &p.Body), "error_pages: {%s} is no variable of pages and stays as it is; did you mean {%s}?", word[1], closest)
			return
		}
	}
}

// pageFiles lists the files of pages.
func pageFiles(h *HTTPListener) (files []config.Path) {
	add := func(pages []ErrorPage) {
		for i := range pages {
			if pages[i].File != "" {
				files = append(files, pages[i].File)
			}
		}
	}
	add(h.ErrorPages)
	for i := range h.Routes {
		add(h.Routes[i].ErrorPages)
	}
	return files
}
