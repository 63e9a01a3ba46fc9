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
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// completeTime is how long the cluster may take to answer while a user types.
const completeTime = 2 * time.Second

// byPosition completes each argument with its own completion, and further arguments with the last one. A completion gets the
// arguments before it, without the first skipped ones.
func byPosition(skipped int, with ...completion) completion {
	return func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		return with[min(len(args), len(with)-1)](cmd, args[min(skipped, len(args)):], begin)
	}
}

// completed returns the words that begin so. An error of the cluster is not reported.
func completed(words []string, begin string, err error) ([]string, cobra.ShellCompDirective) {
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	slices.Sort(words)
	words = slices.DeleteFunc(slices.Compact(words), func(word string) bool {
		return !strings.HasPrefix(word, begin) || wording.ShellWord(word) != word
	})
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeWorkloads completes the workload a command is about.
func (c *connection) completeWorkloads(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	words, err := c.workloadNames(ctx)
	if begin != "" && !strings.Contains(begin, "/") {
		// A name alone is enough if one kind has it.
		kinds := map[string]int{}
		for _, word := range words {
			_, name, _ := strings.Cut(word, "/")
			kinds[name]++
		}
		for name, n := range kinds {
			if n == 1 {
				words = append(words, name)
			}
		}
	}
	return completed(words, begin, err)
}

func (c *connection) workloadNames(ctx context.Context) (words []string, err error) {
	namespace, err := c.namespace()
	if err != nil {
		return nil, err
	}
	api, err := c.client()
	if err != nil {
		return nil, err
	}
	kinds, err := c.kinds(ctx, api)
	if err != nil {
		return nil, err
	}
	for _, kind := range kinds.Kinds() {
		names, err := namesOf(ctx, api, kind.GroupVersionKind(), inNamespace(kind, namespace)...)
		if err != nil && declarationOf(kind) == nil {
			return nil, err
		}
		for _, name := range names {
			words = append(words, workload.ArgumentOf(kind.GroupVersionKind().GroupKind())+"/"+name)
		}
	}
	return words, nil
}

func namesOf(ctx context.Context, api client.Reader, gvk schema.GroupVersionKind, opts ...client.ListOption) (names []string, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := api.List(ctx, list, opts...); err != nil {
		return nil, err
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// completeNamespaces completes namespaces.
func (c *connection) completeNamespaces(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	api, err := c.client()
	if err != nil {
		return completed(nil, begin, err)
	}
	names, err := namesOf(ctx, api, corev1.SchemeGroupVersion.WithKind("Namespace"))
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) })
	return completed(names, begin, err)
}

// completeEnroll completes namespaces, and workloads after a kind.
func (c *connection) completeEnroll(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if isWorkload(begin) {
		return c.completeWorkloads(cmd, args, begin)
	}
	return c.completeNamespaces(cmd, args, begin)
}

// listWords returns the words of a workload that can be typed next.
type listWords = func(ctx context.Context, api client.Reader, t target, stored *unstructured.Unstructured) ([]string, error)

// completeFrom completes with words of the workload that the first argument names.
func (c *connection) completeFrom(list listWords) completion {
	return func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		api, t, err := c.reach(ctx, args[:1])
		if err != nil {
			return completed(nil, begin, err)
		}
		stored, err := t.read(ctx, api)
		if err != nil {
			return completed(nil, begin, err)
		}
		words, err := list(ctx, api, t, stored)
		return completed(words, begin, err)
	}
}

// completeVersions completes versions of the workload that were released.
func (c *connection) completeVersions(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	return c.completeFrom(func(ctx context.Context, api client.Reader, t target, stored *unstructured.Unstructured) ([]string, error) {
		changes, err := releasesOf(ctx, api, t, stored.GetUID())
		var words []string
		for i := range changes {
			words = append(words, changes[i].Spec.Reversion)
		}
		return words, err
	})(cmd, args, begin)
}

// completeHistory completes versions that a rollback may go to.
func (c *connection) completeHistory(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	return c.completeFrom(func(ctx context.Context, api client.Reader, t target, stored *unstructured.Unstructured) ([]string, error) {
		history, err := readHistory(ctx, api, t, stored.GetUID())
		words := []string{rollback.LastSuccess}
		for i := range history {
			words = append(words, history[i].Version)
		}
		return words, err
	})(cmd, args, begin)
}

// completePods completes pods that are in batches.
func (c *connection) completePods(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	return c.completeFrom(func(ctx context.Context, api client.Reader, t target, _ *unstructured.Unstructured) (words []string, err error) {
		var list v1alpha1.ChangePodList
		err = api.List(ctx, &list, recordsOf(t)...)
		for i := range list.Items {
			for _, info := range list.Items[i].Spec.PodInfos {
				words = append(words, info.Pod)
			}
		}
		return words, err
	})(cmd, args, begin)
}

// isWorkload reports whether an argument names a workload and no namespace.
func isWorkload(arg string) bool { return strings.Contains(arg, "/") }
