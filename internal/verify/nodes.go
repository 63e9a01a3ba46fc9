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

// nodes says whose a node of the server is. The server carries out whatever is
// asked for a node, whoever's order the request names, so a node that two records
// name is neither's, unless this process started it and knows.
type nodes struct {
	view cluster.View
	// of are the UIDs of the records that nodes were started for.
	of *lru.Cache
}

const maxStartedNodes = 10_000

func newNodes(v cluster.View) *nodes { return &nodes{view: v, of: lru.New(maxStartedNodes)} }

// started notes that a node was started for a record.
func (n *nodes) started(record client.Object, node string) {
	if node != "" {
		n.of.Add(node, record.GetUID())
	}
}

// refuse is the answer to a call that ends or asks for a node that is not the record's, or not
// known to be; nil when it is. The call is tried again: whoever copied the id may
// take it back.
func (n *nodes) refuse(ctx context.Context, call defense.Call, record client.Object, node string) (*defense.Answer, error) {
	if call != defense.CallFinish && call != defense.CallPollPre && call != defense.CallPollPost {
		return nil, nil
	}
	refused := &defense.Answer{Kind: defense.AnswerRetry, Message: fmt.Sprintf("node %s is in the status of another record, too", node)}
	if uid, known := n.of.Get(node); known {
		if uid == record.GetUID() {
			return nil, nil
		}
		metrics.ForeignID("node")
		log.FromContext(ctx).Info("the status of a record names a node that was started for another one", "node", node, "startedFor", uid)
		return refused, nil
	}
	others, err := n.others(ctx, record.GetUID(), node)
	if err != nil || len(others) == 0 {
		return nil, err
	}
	metrics.ForeignID("node")
	log.FromContext(ctx).Info("several records name one node of the server, and none of them gets it", "node", node, "others", others)
	return refused, nil
}

// others are the other records that name a node.
func (n *nodes) others(ctx context.Context, uid types.UID, node string) (others []string, err error) {
	by := client.MatchingFields{workload.IndexByNode: node}
	var batches v1alpha1.ChangePodList
	var releases v1alpha1.ChangeWorkloadList
	if err := n.view.Cached.List(ctx, &batches, by, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("find the changepods of node %s: %w", node, err)
	}
	if err := n.view.Cached.List(ctx, &releases, by, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("find the changeworkloads of node %s: %w", node, err)
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
