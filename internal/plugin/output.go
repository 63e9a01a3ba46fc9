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
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// own begins the escape sequences of this program. It is random, so that no text of the cluster contains it.
var own = "\x1b" + rand.Text()

// printf prints in a format of this program, and cleans the arguments: most come from the cluster. Nothing else prints text.
func printf(w io.Writer, format string, args ...any) {
	for i, arg := range args {
		switch arg.(type) {
		case bool, int, int32, int64:
		default:
			args[i] = clean(fmt.Sprint(arg))
		}
	}
	_, _ = fmt.Fprintf(w, format, args...)
}

// clean returns a printable text, with the escape sequences of this program.
func clean(text string) string {
	parts := strings.Split(text, own)
	for i := range parts {
		parts[i] = wording.Printable(parts[i])
	}
	return strings.Join(parts, "\x1b")
}

// warnings cleans the warnings of API servers.
type warnings struct{ rest.WarningHandler }

// HandleWarningHeader implements rest.WarningHandler.
func (w warnings) HandleWarningHeader(code int, agent, text string) {
	w.WarningHandler.HandleWarningHeader(code, agent, clean(text))
}

// remedied is an error with what to do about it.
type remedied struct {
	err error
	do  string
}

// remedy adds to an error what to do about it.
func remedy(err error, do string) error { return &remedied{err: err, do: do} }

// Error implements error.
func (r *remedied) Error() string { return r.err.Error() + r.tail() }

func (r *remedied) tail() string { return "\n  " + r.do }

// Unwrap returns the error itself.
func (r *remedied) Unwrap() error { return r.err }

// printError prints an error, and on a line of its own what to do about it.
func printError(w io.Writer, before string, err error) {
	text, known := err.Error(), &remedied{}
	if !errors.As(err, &known) {
		printf(w, "%s%s\n", before, text)
		return
	}
	printf(w, "%s%s\n  %s\n", before, strings.TrimSuffix(text, known.tail()), known.do)
}

// Explained adds to an error of an API server or of the network what to do about it, where no command has done so.
func Explained(err error) error {
	var known *remedied
	switch {
	case errors.As(err, &known):
		return err
	case meta.IsNoMatchError(err):
		return remedy(err, "the operator's kinds are not installed in this cluster, or it is another cluster: see kubectl altershield check")
	case apierrors.IsForbidden(err):
		return remedy(err, "your user lacks this right here; "+
			"see the table of rights in docs/concepts/security.md, or ask with kubectl auth can-i")
	case apierrors.IsUnauthorized(err):
		return remedy(err, "log in to the cluster again, or choose another context with --context")
	case utilnet.IsConnectionRefused(err), utilnet.IsTimeout(err):
		return remedy(err, "the API server cannot be reached: see kubectl cluster-info, and choose another context with --context")
	default:
		return err
	}
}

// reasonOf returns the message of an API server, without what the operator's code adds.
func reasonOf(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}

// printObject prints an object of this program as kubectl prints objects. An object without a kind gets the name of its type.
func printObject(w io.Writer, p printers.ResourcePrinter, what any) error {
	data, err := json.Marshal(what)
	content := map[string]any{}
	if err == nil {
		err = utiljson.Unmarshal([]byte(clean(string(data))), &content) // numbers stay integers
	}
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	if content["kind"] == nil {
		content["apiVersion"], content["kind"] = v1alpha1.GroupVersion.String(), reflect.Indirect(reflect.ValueOf(what)).Type().Name()
	}
	object := runtime.Object(&unstructured.Unstructured{Object: content})
	if items, is := content["items"].([]any); is {
		list := &unstructured.UnstructuredList{Object: content}
		for _, item := range items {
			if of, ok := item.(map[string]any); ok {
				list.Items = append(list.Items, unstructured.Unstructured{Object: of})
			}
		}
		object = list
	}
	var text bytes.Buffer
	if err := p.PrintObj(object, &text); err != nil {
		return err
	}
	lines := strings.Split(text.String(), "\n")
	for i := range lines {
		lines[i] = clean(lines[i])
	}
	// A printer of YAML begins each document but its first with a separator.
	_, err = io.WriteString(w, strings.TrimSpace(strings.TrimPrefix(strings.Join(lines, "\n"), "---\n"))+"\n")
	return err
}

// style is how a terminal, or a file, shows text. Each command prints by a method of it, in the file of the command.
type style struct {
	// ascii: nothing but ASCII. color: with colours. wide: everything.
	ascii, color, wide bool
	// columns is the length of lines; 0 for any.
	columns int
	// operator is the namespace of the operator.
	operator string
}

// styleOf returns the style for an output. Only a terminal has a length of lines and, where NO_COLOR is unset, colours.
func styleOf(out io.Writer, env func(string) string) style {
	st := style{}
	if file, ok := out.(*os.File); ok && printers.IsTerminal(out) {
		st.color = env("NO_COLOR") == "" && env("TERM") != "dumb"
		st.columns, _, _ = term.GetSize(int(file.Fd()))
	}
	if locale := strings.ToLower(cmp.Or(env("LC_ALL"), env("LC_CTYPE"), env("LANG"))); locale != "" {
		st.ascii = !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")
	}
	return st
}

// mark is the symbol before a word, in Unicode and in ASCII, with its colour (SGR).
type mark struct{ symbol, ascii, sgr string }

var (
	markGood   = mark{"✔", "+", "32"}
	markBad    = mark{"✖", "x", "31"}
	markWaits  = mark{"◷", "~", "33"}
	markPaused = mark{"⏸", "=", "33"}
	markPlain  = mark{"·", "-", "39"}
)

// of puts a mark before a text.
func (m mark) of(st style, text string) string {
	symbol := m.symbol
	if st.ascii {
		symbol = m.ascii
	}
	return st.colored(symbol, m.sgr) + " " + text
}

func (st style) colored(text, sgr string) string {
	if !st.color {
		return text
	}
	return own + "[" + sgr + "m" + text + own + "[0m"
}

func (st style) bold(text string) string { return st.colored(text, "1") }

// markOfState returns the mark of a state of a release.
func markOfState(state string) mark {
	switch v1alpha1.ChangeWorkloadStatusType(state) {
	case v1alpha1.ChangeWorkloadSuccess:
		return markGood
	case v1alpha1.ChangeWorkloadSuspend, v1alpha1.ChangeWorkloadFailed, v1alpha1.ChangeWorkloadRollback:
		return markBad
	case v1alpha1.ChangeWorkloadCanceled:
		return markPlain
	default:
		return markWaits
	}
}

// columnGap is the width between columns, and minCell the least width of the last one.
const (
	columnGap = 2
	minCell   = 24
)

// cut shortens a text to the rest of a line that has so many columns before it.
func (st style) cut(text string, before int) string {
	width := max(st.columns-before, minCell)
	if st.columns == 0 || st.wide || utf8.RuneCountInString(text) <= width {
		return text
	}
	dots := "…"
	if st.ascii {
		dots = "..."
	}
	return string([]rune(text)[:width-utf8.RuneCountInString(dots)]) + dots
}

// noMark returns a blank as wide as a mark, for the heads of columns.
func (st style) noMark() string { return st.colored(" ", "39") + " " }

// escapes matches the escape sequences of this program.
var escapes = regexp.MustCompile(regexp.QuoteMeta(own) + `\[\d+m`)

// width returns the number of columns of a text on a terminal.
func width(text string) int { return utf8.RuneCountInString(escapes.ReplaceAllString(text, "")) }

// table prints rows in columns, the first row as their heads. The last column is cut to the length of the line.
func (st style) table(w io.Writer, rows [][]string) {
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, columnGap, ' ', 0)
	for _, row := range rows {
		for _, cell := range row[:len(row)-1] {
			_, _ = t.Write([]byte(clean(cell) + "\t"))
		}
		_, _ = t.Write([]byte("\n"))
	}
	_ = t.Flush()
	for i, line := range strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n") {
		line = strings.ReplaceAll(line, "\x1b", own)
		last := rows[i][len(rows[i])-1]
		printf(w, "%s\n", strings.TrimRight(line+st.cut(last, width(line)), " "))
	}
}

// paragraph prints a text in lines, each with an indent.
func (st style) paragraph(w io.Writer, indent, text string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case st.columns > 0 && width(line)+1+width(word) > st.columns-len(indent):
			printf(w, "%s\n", indent+line)
			line = word
		default:
			line += " " + word
		}
	}
	printf(w, "%s\n", indent+line)
}

// age returns a duration as kubectl prints it.
func age(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

// who names a user.
func (st style) who(user string) string {
	if st.isOperator(user) {
		return "the operator"
	}
	return user
}

// isOperator reports whether a user is the operator, by its identity or, where admission missed the request, by its field manager.
func (st style) isOperator(user string) bool {
	return user == v1alpha1.FieldManager || st.operator != "" && strings.HasPrefix(user, "system:serviceaccount:"+st.operator+":")
}

// version returns a version as it is printed.
func (st style) version(v string) string {
	if st.wide {
		return v
	}
	return short(v)
}

// short returns the beginning of a version, which is enough to recognize it.
func short(version string) string { return version[:min(len(version), 12)] }
