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

package observer

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

var (
	// commands matches the control characters that a terminal interprets: C0 except newline and
	// tab, C1 and bidi controls, and C0 escaped as in JSON.
	commands = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f-\x{9f}\x{61c}\x{200e}\x{200f}\x{202a}-\x{202e}\x{2066}-\x{2069}]|\\u00[01]`)
)

// checkText checks S13 for a text that people read.
func checkText(text string) (findings []finding) {
	if at := commands.FindStringIndex(text); at != nil {
		findings = append(findings, found(Printable, "a text has control characters: %q", text))
	}
	if why := unquoted(text); why != "" {
		findings = append(findings, found(Printable, "a text advises a command in which %s: %q", why, text))
	}
	return findings
}

// kubectl begins a command that a text advises. plainBytes need no quotes in a shell.
const (
	kubectl    = "kubectl "
	plainBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+:,./_=-"
)

// unquoted returns why a shell does not read a command in a text word by word; empty if it does. A
// command ends behind its namespace, with a sentence, or with the text.
func unquoted(text string) string {
	_, rest, advises := strings.Cut(text, kubectl)
	for ; advises; _, rest, advises = strings.Cut(rest, kubectl) {
		word, more, namespace, ends := "", rest, false, false
		for !ends {
			namespace = word == "-n"
			var closed bool
			if word, more, closed = shellWord(more); !closed {
				if strings.HasSuffix(text, "…") || strings.HasSuffix(text, "...") {
					return "" // the rest was cut off
				}
				return "a quote is not closed"
			}
			switch {
			case more == "", strings.ContainsAny(more[:1], "\n)\""), namespace && (more == ";" || strings.HasPrefix(more, "; ")):
				ends = true
			case more[0] != ' ':
				return "a word is not quoted, from " + more
			default:
				ends, more = namespace || word != "" && strings.ContainsAny(word[len(word)-1:], ".,:"), more[1:]
			}
		}
	}
	return ""
}

// shellWord cuts a word off a command, up to a byte that ends it or that a shell interprets. closed
// is false if a quote is not closed.
func shellWord(text string) (word, rest string, closed bool) {
	i := 0
	for i < len(text) {
		switch c := text[i]; {
		case c == '\'':
			end := strings.IndexByte(text[i+1:], '\'')
			if end < 0 {
				return "", "", false
			}
			i += end + 2
		case strings.HasPrefix(text[i:], `\'`):
			i += 2
		case strings.IndexByte(plainBytes, c) >= 0:
			i++
		default:
			return text[:i], text[i:], true
		}
	}
	return text, "", true
}

// mayCommand reports whether a text in JSON may have a control character, or advise a command.
func mayCommand(body []byte) bool {
	for i, c := range body {
		if c > 0x7f || c == '\\' && i+1 < len(body) && strings.IndexByte("bfru", body[i+1]) >= 0 {
			return true
		}
	}
	return bytes.Contains(body, []byte("kubectl "))
}

// checkPrintable checks S13 for a request. Templates and the annotations of users are not judged.
func checkPrintable(r *Request) []finding {
	var sent any
	if !mayCommand(r.body) || json.Unmarshal(r.body, &sent) != nil {
		return nil
	}
	return checkValue(sent, r.Subresource == "status")
}

func checkValue(value any, statusOnly bool) (findings []finding) {
	switch v := value.(type) {
	case string:
		return checkText(v)
	case []any:
		for _, inner := range v {
			findings = append(findings, checkValue(inner, false)...)
		}
	case map[string]any:
		path, _ := v["path"].(string)
		if strings.HasPrefix(path, "/spec/") || strings.HasSuffix(path, "last-applied-configuration") || v["op"] == "test" {
			return nil
		}
		for key, inner := range v {
			users := key == "template" || key == "data" || key == "managedFields" || key == corev1.LastAppliedConfigAnnotation
			if !users && (!statusOnly || key == "status") {
				findings = append(findings, checkValue(inner, false)...)
			}
		}
	}
	return findings
}
