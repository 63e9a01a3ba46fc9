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
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// reading is a command that reads and prints. Each such command runs by a method in its own file.
type reading struct {
	*connection
	output
	operator string
	watch    bool
	style    style
	printer  printers.ResourcePrinter
}

func newReading(c *connection, cmd *cobra.Command) *reading {
	a := &reading{connection: c, output: newOutput(cmd, formatWide, " Or wide: everything, for people.")}
	addOperatorNamespace(cmd.Flags(), &a.operator)
	return a
}

// begin connects.
func (a *reading) begin(ctx context.Context) (live client.WithWatch, namespace string, err error) {
	if a.printer, err = a.output.printer(); err != nil {
		return nil, "", err
	}
	if namespace, err = a.namespace(); err != nil {
		return nil, "", err
	}
	if live, err = a.client(); err != nil {
		return nil, "", err
	}
	a.operator = operatorIn(ctx, live, a.operator)
	a.style = styleOf(a.Out, os.Getenv)
	a.style.operator, a.style.wide = a.operator, a.is(formatWide)
	return live, namespace, nil
}

// Metadata names an object.
type Metadata struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// show prints the output of load once, or with -w each time it changes.
func (a *reading) show(
	ctx context.Context, live client.WithWatch, what []watched, atLeast time.Duration,
	load func(context.Context) (func(io.Writer, time.Time) error, error),
) error {
	if !a.watch {
		to, err := load(ctx)
		if err != nil {
			return err
		}
		return to(a.Out, a.Now())
	}
	screen := &screen{w: a.Out, terminal: printers.IsTerminal(a.Out), began: a.Now(), now: a.Now, between: "\n"}
	if *a.OutputFormat == "yaml" {
		screen.between = "---\n"
	}
	w := &watcher{api: live, what: what, trouble: a.printTrouble, atLeast: atLeast}
	err := w.until(ctx, func(ctx context.Context) (bool, error) {
		to, err := load(ctx)
		known := &remedied{}
		if errors.As(err, &known) && screen.last != nil { // it may come again
			to, err = func(w io.Writer, _ time.Time) error { printError(w, "", known); return nil }, nil
		}
		if err != nil {
			return false, err
		}
		return false, screen.draw(to)
	})
	if errors.Is(err, ctx.Err()) { // the user interrupted it
		err = nil
	}
	return err
}

// one prints something about one workload.
func (a *reading) one(ctx context.Context, args []string, show func(io.Writer, *snapshot) error) error {
	live, namespace, err := a.begin(ctx)
	if err != nil {
		return err
	}
	t, err := a.find(ctx, live, namespace, args...)
	if err != nil {
		return err
	}
	return a.show(ctx, live, []watched{
		{&v1alpha1.ChangeWorkloadList{}, recordsOf(t)}, {&v1alpha1.ChangePodList{}, recordsOf(t)}, watchedTarget(t),
	}, redraw, func(ctx context.Context) (func(io.Writer, time.Time) error, error) {
		s, err := a.load(ctx, live, a.operator, t)
		return func(w io.Writer, now time.Time) error {
			s.now = now
			return show(w, s)
		}, err
	})
}

// screen replaces the last text on a terminal. Elsewhere it prints a changed text below the last one.
type screen struct {
	w        io.Writer
	terminal bool
	now      func() time.Time
	// began is the time by which texts are compared: other ages are no change.
	began time.Time
	last  []byte
	// between separates texts.
	between string
}

// clearScreen keeps the scrollback.
const clearScreen = "\x1b[H\x1b[2J"

func (s *screen) draw(show func(io.Writer, time.Time) error) error {
	var compared, text bytes.Buffer
	if err := errors.Join(show(&compared, s.began), show(&text, s.now())); err != nil {
		return err
	}
	if bytes.Equal(compared.Bytes(), s.last) && !s.terminal {
		return nil
	}
	begin := ""
	if s.terminal {
		begin = clearScreen
	} else if s.last != nil {
		begin = s.between
	}
	s.last = compared.Bytes()
	_, err := io.WriteString(s.w, begin+text.String())
	return err
}
