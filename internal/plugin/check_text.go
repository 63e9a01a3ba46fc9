/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package plugin

import (
	"io"
	"strings"

	"github.com/traas-stack/altershield-operator/internal/plugin/installation"
)

// reportLook is how a report is printed for people.
type reportLook struct {
	// short leaves out what passed.
	short bool
	// strict says that warnings count as failures.
	strict bool
	style
}

// sign begins the line of a check.
type sign struct{ unicode, ascii, colour string }

var signs = map[installation.Status]sign{
	installation.OK:      {"√", "[ok]", "32"},
	installation.Warning: {"‼", "[!!]", "33"},
	installation.Failed:  {"×", "[xx]", "31"},
	installation.Skipped: {"-", "[--]", "90"},
}

func (l reportLook) sign(status installation.Status) string {
	s := signs[status]
	shown := s.unicode
	if l.ascii {
		shown = s.ascii
	}
	return l.colored(shown, s.colour)
}

func (l reportLook) print(w io.Writer, r *installation.Report) error {
	var b strings.Builder
	for _, g := range r.Groups {
		l.group(&b, g)
	}
	status, word := installation.OK, "healthy"
	switch {
	case r.Unknown:
		status, word = installation.Warning, "unknown: your user may read neither the manager nor its webhooks, and an administrator of the cluster may"
	case !r.Healthy:
		status, word = installation.Failed, "not healthy"
	case r.Summary.Warnings > 0 && l.strict:
		status, word = installation.Failed, "not healthy, since warnings count"
	case r.Summary.Warnings > 0:
		status, word = installation.Warning, "healthy, with warnings"
	}
	printf(&b, "%s the installation is %s: %d ok, %d warnings, %d failed, %d skipped\n",
		l.sign(status), word, r.Summary.OK, r.Summary.Warnings, r.Summary.Failed, r.Summary.Skipped)
	_, err := io.WriteString(w, b.String())
	return err
}

func (l reportLook) group(w io.Writer, g installation.Group) {
	began := false
	for _, c := range g.Checks {
		if l.short && (c.Status == installation.OK || c.Status == installation.Skipped) {
			continue
		}
		if !began {
			began = true
			printf(w, "%s\n%s\n", g.Name, strings.Repeat("-", len(g.Name)))
		}
		l.check(w, c)
	}
	if began {
		printf(w, "\n")
	}
}

func (l reportLook) check(w io.Writer, c installation.Check) {
	said := c.Name
	if l.ascii {
		said = asciiOnly(said)
	}
	switch {
	case c.Message == "":
		printf(w, "%s %s\n", l.sign(c.Status), said)
		return
	case c.Status == installation.OK:
		printf(w, "%s %s: %s\n", l.sign(c.Status), said, l.text(c.Message))
		return
	case c.Status == installation.Skipped:
		printf(w, "%s %s\n    skipped: %s\n", l.sign(c.Status), said, l.text(c.Message))
		return
	}
	printf(w, "%s %s\n    %s\n", l.sign(c.Status), said, l.text(c.Message))
	if c.Remedy != "" {
		printf(w, "    do: %s\n", l.text(c.Remedy))
	}
	if c.Docs != "" {
		printf(w, "    see %s\n", c.Docs)
	}
}

// text of a message.
func (l reportLook) text(s string) string {
	s = strings.TrimSpace(s)
	if l.ascii {
		return asciiOnly(s)
	}
	return s
}

// asciiOnly text has no characters beyond ASCII.
func asciiOnly(s string) string {
	return strings.Map(func(r rune) rune {
		if r > '~' {
			return '?'
		}
		return r
	}, s)
}
