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

package verify

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// entries says whose an entry of the server is. The server carries out whatever is
// asked for an entry, whoever's order the request names, so an entry that two records
// name is neither's, unless this process started it and knows.
type entries struct {
	view cluster.View
	// of are the UIDs of the records that entries were started for.
	of *lru.Cache
}

const maxStartedEntries = 10_000

func newEntries(v cluster.View) *entries { return &entries{view: v, of: lru.New(maxStartedEntries)} }

// started notes that an entry was started for a record.
func (n *entries) started(record client.Object, entry string) {
	if entry != "" {
		n.of.Add(entry, record.GetUID())
	}
}

// refuse is the answer to a call that ends or asks for an entry that is not the record's, or not
// known to be; nil when it is. The call is tried again: whoever copied the id may
// take it back.
func (n *entries) refuse(ctx context.Context, call defense.Call, record client.Object, entry string) (*defense.Answer, error) {
	if call != defense.CallFinish && call != defense.CallPollPre && call != defense.CallPollPost {
		return nil, nil
	}
	refused := &defense.Answer{Kind: defense.AnswerRetry, Message: fmt.Sprintf("order entry %s is in the status of another record, too", entry)}
	if uid, known := n.of.Get(entry); known {
		if uid == record.GetUID() {
			return nil, nil
		}
		metrics.ForeignID("node")
		log.FromContext(ctx).Info("the status of a record names an order entry that was started for another one", "orderEntry", entry, "startedFor", uid)
		return refused, nil
	}
	others, err := n.others(ctx, record.GetUID(), entry)
	if err != nil || len(others) == 0 {
		return nil, err
	}
	metrics.ForeignID("node")
	log.FromContext(ctx).Info("several records name one order entry, and none of them gets it", "orderEntry", entry, "others", others)
	return refused, nil
}

// others are the other records that name an entry.
func (n *entries) others(ctx context.Context, uid types.UID, entry string) (others []string, err error) {
	by := client.MatchingFields{workload.IndexByNode: entry}
	var batches v1alpha1.ChangePodList
	var releases v1alpha1.ChangeWorkloadList
	if err := n.view.Cached.List(ctx, &batches, by, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("find the changepods of order entry %s: %w", entry, err)
	}
	if err := n.view.Cached.List(ctx, &releases, by, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("find the changeworkloads of order entry %s: %w", entry, err)
	}
	for i := range batches.Items {
		if batches.Items[i].UID != uid {
			others = append(others, client.ObjectKeyFromObject(&batches.Items[i]).String())
		}
	}
	for i := range releases.Items {
		if releases.Items[i].UID != uid {
			others = append(others, client.ObjectKeyFromObject(&releases.Items[i]).String())
		}
	}
	return others, nil
}
