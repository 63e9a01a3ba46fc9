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
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// completion is a function that cobra calls for the words that may be typed next.
type completion = func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective)

// completeFlag completes the values of a flag.
func completeFlag(cmd *cobra.Command, flag string, with completion) {
	if err := cmd.RegisterFlagCompletionFunc(flag, with); err != nil {
		panic(err) // the command has no such flag: a mistake in the program
	}
}

// fixed completes with these words.
func fixed(words ...string) completion {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// output is the flag -o of a command.
type output struct {
	*genericclioptions.PrintFlags
	// people is a second format for people; empty for none.
	people string
}

// newOutput adds the flag -o to a command.
func newOutput(cmd *cobra.Command, people, usage string) output {
	o := output{genericclioptions.NewPrintFlags(""), people}
	o.AddFlags(cmd)
	cmd.Flags().Lookup("output").Usage += usage
	completeFlag(cmd, "output", fixed("name", "json", "yaml", "jsonpath=", people))
	return o
}

// is reports whether the format for people is asked for.
func (o output) is(people string) bool { return people != "" && *o.OutputFormat == people }

// printer returns the printer of a format for programs; nil for people.
func (o output) printer() (printers.ResourcePrinter, error) {
	if *o.OutputFormat == "" && *o.TemplatePrinterFlags.TemplateArgument == "" || o.is(o.people) {
		return nil, nil
	}
	p, err := o.ToPrinter()
	if err != nil {
		return nil, remedy(fmt.Errorf("-o %s is no format", *o.OutputFormat),
			"give name, json, yaml, jsonpath=..., go-template=..., or omit it")
	}
	return p, nil
}

// Formats for people, beside the default.
const (
	formatWide  = "wide"
	formatShort = "short"
)

// addOperatorNamespace adds the flag --operator-namespace.
func addOperatorNamespace(flags *pflag.FlagSet, namespace *string) {
	flags.StringVar(namespace, "operator-namespace", "", "`namespace` of the operator (default: where its webhooks are served)")
}
