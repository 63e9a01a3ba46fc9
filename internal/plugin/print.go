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
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/traas-stack/altershield-operator/internal/defense"
)

// own begins the escape sequences of this program. Nobody else knows it, so that text of
// the cluster has none.
var own = "\x1b" + rand.Text()

// printf prints in a format of this program, and cleans what is put into it: most of that
// comes from the cluster. Nothing else prints text.
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

// clean is a printable text, with the escape sequences of this program.
func clean(text string) string {
	parts := strings.Split(text, own)
	for i := range parts {
		parts[i] = defense.Printable(parts[i])
	}
	return strings.Join(parts, "\x1b")
}

// printError prints an error, and on a line of its own what to do about it.
func printError(w io.Writer, before string, err error) {
	text, known := err.Error(), &remedied{}
	if !errors.As(err, &known) {
		printf(w, "%s%s\n", before, text)
		return
	}
	printf(w, "%s%s\n  %s\n", before, strings.TrimSuffix(text, known.tail()), known.do)
}

// warnings cleans what API servers warn of.
type warnings struct{ rest.WarningHandler }

// HandleWarningHeader implements rest.WarningHandler.
func (w warnings) HandleWarningHeader(code int, agent, text string) {
	w.WarningHandler.HandleWarningHeader(code, agent, clean(text))
}
